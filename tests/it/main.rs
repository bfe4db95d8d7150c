//! The integration tests, one binary.
#![cfg(not(tollgate_loom))]
mod any_window;
mod bad_input;
mod cancel_sweep;
#[cfg(feature = "channel")]
mod channel_semaphore;
mod coarse_clock;
mod compose;
mod conformance;
mod gateway;
#[cfg(feature = "governor")]
mod governed;
mod governor_oracle;
mod hostile_wakers;
mod keyed;
mod keyed_fair;
mod keyed_rate;
mod lease;
mod policy_line;
mod quota;
mod rate_token_bucket;
mod rate_window;
mod semaphore;
mod semaphore_orders;
mod semaphore_resize;
mod semaphore_rest;
mod semaphore_twin;
mod time;
