//! The integration tests, one binary.
#![cfg(not(tollgate_loom))]
mod bad_input;
mod cancel_sweep;
#[cfg(feature = "channel")]
mod channel_semaphore;
mod compose;
mod conformance;
#[cfg(feature = "fan-out")]
mod fan_out;
mod gateway;
mod hostile_wakers;
mod policy_line;
#[cfg(feature = "pool")]
mod pool;
#[cfg(feature = "pool")]
mod pool_group;
#[cfg(feature = "pool")]
mod pool_life;
#[cfg(all(feature = "pool", feature = "tokio"))]
mod pool_tasks;
mod quota;
mod rate_token_bucket;
mod rate_window;
mod semaphore;
mod semaphore_orders;
mod semaphore_resize;
mod semaphore_rest;
mod semaphore_twin;
mod time;
