//! The integration tests, one binary.
#![cfg(not(any(tollgate_loom, tollgate_shuttle)))]

/// The configuration of a property: `few` cases, or as many as `PROPTEST_CASES` says.
fn cases(few: u32) -> proptest::prelude::ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok());
    proptest::prelude::ProptestConfig::with_cases(cases.unwrap_or(few))
}

mod adaptive;
mod boxed;
mod breaker;
mod causes;
mod conformance;
mod fan_out;
mod idle;
mod open_circuit;
mod panics;
mod pool;
mod question_mark;
mod retry;
mod run;
mod shed;
mod status;
mod upstream;
