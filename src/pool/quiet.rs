//! How many tasks of a pool have not ended, and who waits for there to be none. Plain data, for the pool's lock.

use std::task::{Poll, Waker};

#[derive(Default)]
pub(super) struct Quiet {
    /// Tasks that were let in and have neither ended nor been taken out, except for what workers have not told yet.
    unfinished: usize,
    /// How often that has become zero.
    epoch: u64,
    waiters: Vec<Waker>,
}

impl Quiet {
    pub(super) fn unfinished(&self) -> usize {
        self.unfinished
    }

    #[inline]
    pub(super) fn begun(&mut self, tasks: usize) {
        self.unfinished += tasks;
    }

    /// Whom to wake, after the lock, is added to `told`.
    pub(super) fn finished(&mut self, tasks: usize, told: &mut Vec<Waker>) {
        debug_assert!(tasks <= self.unfinished, "{tasks} ended of {}", self.unfinished);
        self.unfinished = self.unfinished.saturating_sub(tasks);
        if tasks > 0 && self.unfinished == 0 {
            self.epoch += 1;
            self.tell(told);
        }
    }

    /// All who wait look again.
    pub(super) fn tell(&mut self, told: &mut Vec<Waker>) {
        told.append(&mut self.waiters);
    }

    /// True once everything that was let in has ended: at one moment since the first look, whose epoch is `since`; or
    /// now, where the workers are to have gone as well. Takes `waker` otherwise, if it is a new one; what is left of it is to
    /// be dropped after the lock.
    pub(super) fn poll(&mut self, since: &mut Option<u64>, gone: Option<bool>, waker: &mut Option<Waker>) -> Poll<()> {
        let epoch = *since.get_or_insert(self.epoch);
        let quiet = match gone {
            None => self.unfinished == 0 || epoch != self.epoch,
            Some(gone) => self.unfinished == 0 && gone,
        };
        if quiet {
            return Poll::Ready(());
        }
        // One thread may look many times.
        let waiters = &self.waiters;
        let new = waker.take_if(|waker| !waiters.iter().any(|known| known.will_wake(waker)));
        self.waiters.extend(new);
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given somebody who waits, when all has ended and more begins before the next look, then that moment counts.
    #[test]
    fn a_quiet_moment_counts_although_it_is_over() {
        let (mut quiet, mut since, mut told) = (Quiet::default(), None, Vec::new());
        quiet.begun(2);
        let mut look = |quiet: &mut Quiet, gone| {
            quiet
                .poll(&mut since, gone, &mut Some(Waker::noop().clone()))
                .is_ready()
        };
        assert!(!look(&mut quiet, None));
        quiet.finished(1, &mut told);
        assert_eq!((look(&mut quiet, None), told.len()), (false, 0));
        quiet.finished(1, &mut told);
        quiet.begun(1);
        assert_eq!((look(&mut quiet, None), told.len()), (true, 1));
        assert!(!look(&mut quiet, Some(true)));
        quiet.finished(1, &mut told);
        assert!(!look(&mut quiet, Some(false)) && look(&mut quiet, Some(true)));
    }
}
