//! The number of failures in a row: a period and a count in one word (32 bits each).

use crate::sync::atomic::{AtomicU64, Ordering};

pub(super) struct Streak(AtomicU64);

impl Streak {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Begins `period`. By the holder of the machine's lock, before the period is published.
    pub(super) fn reset(&self, period: u64) {
        // Relaxed: a thread that records in this period has read the word that publishes it.
        self.0.swap(period << 32, Ordering::Relaxed);
    }

    /// True when the last result was a failure.
    pub(super) fn is_running(&self) -> bool {
        // Relaxed: the count says nothing about any other memory.
        self.0.load(Ordering::Relaxed) & u64::from(u32::MAX) != 0
    }

    /// Records `n` results and returns the length of the streak; zero if the period is over.
    #[inline]
    pub(super) fn record(&self, period: u64, failed: bool, n: u64) -> u64 {
        let tag = period << 32;
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            let (of, streak) = (seen >> 32 << 32, seen & u64::from(u32::MAX));
            let next = if failed { (streak + n).min(u32::MAX.into()) } else { 0 };
            if of != tag || next == streak {
                return if of == tag { next } else { 0 };
            }
            // Relaxed: the count says nothing about any other memory.
            match self
                .0
                .compare_exchange_weak(seen, tag | next, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return next,
                Err(now) => seen = now,
            }
        }
    }
}
