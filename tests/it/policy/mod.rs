//! Policies: legs, the queue, reloading, files.

mod attack;
mod causes;
mod classes;
mod conditional;
#[cfg(feature = "policy-file")]
mod file;
mod inherit;
#[cfg(feature = "policy-file")]
mod kinds;
mod long;
mod lowered_limits;
mod moves;
mod notifications;
mod partitions;
mod peaks;
mod programs;
mod queue;
mod queue_order;
mod queue_published;
mod reload;
#[cfg(feature = "policy-file")]
#[cfg(feature = "policy-file")]
mod set;
#[cfg(feature = "policy-file")]
mod source;
