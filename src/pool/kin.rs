//! Pools and their families: sub-pools run on what the pool at the root has.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kin {
    id: u64,
    /// The pool at the root.
    family: u64,
}

/// How a thread, or a task, stands to a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Stranger,
    /// It works for a pool of the same family, and holds no slot of this one.
    Relative,
    /// It works for this pool.
    Worker,
}

impl Kin {
    /// A new pool, which is the root of a new family unless it stands below another.
    pub(super) fn below(parent: Option<Self>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only that no number comes twice.
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let family = parent.map_or(id, |parent| parent.family);
        Self { id, family }
    }

    pub(super) fn is_relative(self, other: Self) -> bool {
        self.family == other.family
    }

    /// How whoever works for `pools` stands to this one.
    pub(super) fn seen_from(self, mut pools: impl Iterator<Item = Self> + Clone) -> Standing {
        if pools.clone().any(|pool| pool == self) {
            Standing::Worker
        } else if pools.any(|pool| pool.is_relative(self)) {
            Standing::Relative
        } else {
            Standing::Stranger
        }
    }
}
