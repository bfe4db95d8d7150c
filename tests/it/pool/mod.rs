//! Pools of threads and of async tasks.

#[cfg(feature = "tokio")]
mod cancelled;
mod capacity;
#[cfg(feature = "tokio")]
mod counts;
#[cfg(feature = "tokio")]
mod details;
#[cfg(feature = "tokio")]
mod family;
mod foreign_panics;
#[cfg(feature = "tokio")]
mod kinds;
mod life;
mod limits;
mod local_queues;
#[cfg(feature = "tokio")]
mod outcomes;
#[cfg(feature = "tokio")]
mod own_queue;
#[cfg(feature = "tokio")]
mod parity;
#[cfg(feature = "tokio")]
mod reference;
mod scope;
mod shared_slots;
mod sizes;
mod slots_queue;
#[cfg(feature = "tokio")]
mod soak;
#[cfg(all(feature = "fan-out", feature = "tracing"))]
mod spans;
mod stateful;
#[cfg(feature = "tokio")]
mod task_bounds;
#[cfg(feature = "tokio")]
mod task_corners;
#[cfg(feature = "tokio")]
mod task_gate;
#[cfg(feature = "tokio")]
mod task_groups;
#[cfg(feature = "tokio")]
mod task_waits;
#[cfg(feature = "tokio")]
mod tasks;
mod thread_waits;
mod threads;
