//! The integration tests, one binary.
#![cfg(not(tollgate_loom))]

/// The configuration of a property: `few` cases, or as many as `PROPTEST_CASES` says.
fn cases(few: u32) -> proptest::prelude::ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok());
    proptest::prelude::ProptestConfig::with_cases(cases.unwrap_or(few))
}

/// Operations of a program that a fuzz target runs as well, each made from three bytes.
fn ops<T: std::fmt::Debug>(
    len: std::ops::Range<usize>,
    decode: fn([u8; 3]) -> T,
) -> impl proptest::strategy::Strategy<Value = Vec<T>> {
    use proptest::prelude::*;
    prop::collection::vec(any::<[u8; 3]>().prop_map(decode), len)
}

mod core;
#[cfg(feature = "fan-out")]
mod fan_out;
mod keyed;
mod outcomes;
mod policy;
#[cfg(feature = "pool")]
mod pool;
mod rate;
#[cfg(feature = "remote")]
mod remote;
mod semaphore;
mod time;
