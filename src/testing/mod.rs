//! What tests, benches and fuzz targets share. Nothing outside them uses it: the feature `testing` switches it on.

pub mod certificates;
pub mod codec;
pub mod fuzz;
pub mod scripted_broker;
pub mod sim_disk;
pub mod sim_journal;
pub mod tls;
