//! Known bugs that are seeded into this crate to show that its tests and models find them.
//!
//! `seeded!("name")` is false, and costs nothing. Built with `TOLLGATE_SEEDS` set, it is true while the variable `TOLLGATE_BUG`
//! says that name: one build has all bugs, and each run turns on one. Which test finds which: `tests/*/BUGS`, and
//! `ci/test bugs`. Seeds stand in protocols between threads or processes only: mutants test sequential logic.

#[cfg(not(tollgate_seeds))]
macro_rules! seeded {
    ($bug:literal) => {
        false
    };
}

#[cfg(tollgate_seeds)]
macro_rules! seeded {
    ($bug:literal) => {
        $crate::seeded::is($bug)
    };
}

/// An ordering, which this bug weakens.
#[allow(
    unused_macros,
    reason = "not every crate that compiles this file has such an ordering"
)]
macro_rules! weakened {
    ($bug:literal, $ordering:ident) => {
        if seeded!($bug) {
            Ordering::Relaxed
        } else {
            Ordering::$ordering
        }
    };
}

/// True when this bug is turned on.
#[cfg(tollgate_seeds)]
pub(crate) fn is(bug: &str) -> bool {
    static BUG: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    BUG.get_or_init(|| std::env::var("TOLLGATE_BUG").ok()).as_deref() == Some(bug)
}
