//! The trial of a half-open circuit: so many probes, each of which is out, back with a result, or free.
//!
//! Invariant: `out + results <= probes`. A probe that comes back without a result is free again, so the trial goes on
//! until it has as many results as it has probes, and cannot end up with none of them anywhere.

use super::judge::{Counts, Judge, Mark};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Trial {
    probes: u64,
    out: u64,
    results: Counts,
}

/// What a result has decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Verdict {
    /// Nothing yet.
    Undecided,
    Healthy,
    Sick,
}

impl Trial {
    pub(crate) fn new(probes: u64) -> Self {
        Self {
            probes,
            ..Self::default()
        }
    }

    /// How many probes are free.
    pub(crate) fn free(&self) -> u64 {
        self.probes - self.out - self.results.calls
    }

    /// How many are out.
    pub(crate) fn out(&self) -> u64 {
        self.out
    }

    /// How many results are to come.
    pub(crate) fn missing(&self) -> u64 {
        self.probes - self.results.calls
    }

    pub(crate) fn results(&self) -> Counts {
        self.results
    }

    /// Takes `n` probes, if so many are free.
    pub(crate) fn take(&mut self, n: u64) -> bool {
        let fits = n <= self.free();
        if fits {
            self.out += n;
        }
        fits
    }

    /// `n` probes come back and say nothing.
    pub(crate) fn give_back(&mut self, n: u64) {
        self.out -= n.min(self.out);
    }

    /// `n` probes come back with a result.
    pub(crate) fn record(&mut self, mark: Mark, n: u64, judge: &Judge) -> Verdict {
        let n = n.min(self.out);
        self.out -= n;
        self.results.add(mark, n);
        match self.results.calls < self.probes {
            true => Verdict::Undecided,
            false if judge.of_trial(self.probes).condemns(self.results) => Verdict::Sick,
            false => Verdict::Healthy,
        }
    }
}
