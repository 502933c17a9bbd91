//! Changing single fields of an encoded command.
