//! The integration tests, one binary.
#![cfg(not(tollgate_loom))]

/// How many cases a property is tried with: so many, or as many as `PROPTEST_CASES` says.
fn cases(few: u32) -> proptest::prelude::ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok());
    proptest::prelude::ProptestConfig::with_cases(cases.unwrap_or(few))
}

mod adaptive;
mod bad_input;
mod breaker;
mod breaker_probes;
mod bucket_verbs;
mod cancel_sweep;
#[cfg(feature = "channel")]
mod channel_semaphore;
mod compose;
mod conformance;
mod gateway;
mod hostile_wakers;
mod policy_line;
mod quota;
mod rate_fixed_window;
mod rate_hostile;
mod rate_leaky_bucket;
mod rate_published;
mod rate_token_bucket;
mod rate_warmup;
mod rate_window;
mod rate_windows;
mod semaphore;
mod semaphore_orders;
mod semaphore_resize;
mod semaphore_rest;
#[cfg(feature = "stats")]
mod semaphore_stats;
mod semaphore_twin;
mod shed;
mod time;
