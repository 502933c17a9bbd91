//! Messages: the metadata, checksum and payload after SEND and MESSAGE.
