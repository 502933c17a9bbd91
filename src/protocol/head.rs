//! Frame heads: type, ids and sizes of frames that are passed on unread.
