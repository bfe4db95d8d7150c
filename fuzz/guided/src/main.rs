//! The targets of `fuzz/targets` under libFuzzer, which `ci/fuzz` builds and runs. `TOLLGATE_FUZZ_TARGET` names the one that runs.
#![no_main]

// Both kinds of pools, as tests see them.
#[path = "../../../tests/it/pool"]
mod pool {
    #[allow(dead_code, unused_imports, reason = "tests use the rest")]
    pub(crate) mod kinds;
}
#[path = "../../targets/mod.rs"]
mod targets;

use std::sync::LazyLock;
use targets::{TARGETS, Target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("TOLLGATE_FUZZ_TARGET").expect("the name of a target");
    let target = TARGETS.iter().find(|(target, _)| *target == name);
    target.expect("a target of that name").1
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| TARGET(input));
