//! The integration tests, one binary.
#![cfg(not(any(tollgate_loom, tollgate_shuttle)))]

/// The configuration of a property: `few` cases, or as many as `PROPTEST_CASES` says.
fn cases(few: u32) -> proptest::prelude::ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok());
    proptest::prelude::ProptestConfig::with_cases(cases.unwrap_or(few))
}

mod conformance;
mod upstream;
