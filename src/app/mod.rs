//! The composition root: builds components, wires them, and ends them in order.
//!
//! Owns the phases of the process and the order of its shutdown: Serving, NotReady (`/readyz` answers 503), Draining
//! (nothing new is accepted, open connections may finish), Stopped. Never holds logic that another module could. Start
//! at [`run_gateway`].

mod gateway;
mod lifecycle;
mod limits;

pub use gateway::{check_gateway, run_gateway};
pub use lifecycle::{Ended, Shutdown, ShutdownTimes, shut_down};
