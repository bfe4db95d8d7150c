//! Which pool is which.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of a pool, which no other has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kin(u64);

impl Kin {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only the numbers matter.
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
