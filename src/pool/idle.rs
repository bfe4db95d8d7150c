//! Counts the tasks of a pool that have not ended, and keeps the waiters for zero. Plain data, under the pool's lock.

use std::collections::BTreeMap;
use std::task::{Poll, Waker};

/// One wait for idleness or for the end.
#[derive(Default)]
pub(super) struct Wait {
    /// The epoch at the first look.
    since: Option<u64>,
    key: Option<u64>,
}

#[derive(Default)]
pub(super) struct Idleness {
    /// Accepted tasks that have neither ended nor been taken out, including ended ones that workers have not reported
    /// yet.
    unfinished: usize,
    /// The number of times that `unfinished` has become zero.
    epoch: u64,
    /// The waiters. A cancelled one removes its waker, because a pool may never be idle, or end.
    waiting: BTreeMap<u64, Waker>,
    next_key: u64,
}

impl Idleness {
    pub(super) fn unfinished(&self) -> usize {
        self.unfinished
    }

    #[inline]
    pub(super) fn begun(&mut self, tasks: usize) {
        self.unfinished += tasks;
    }

    /// Counts ended tasks. Adds the wakers to wake after the lock to `told`.
    pub(super) fn finished(&mut self, tasks: usize, local_stats: &mut Vec<Waker>) {
        debug_assert!(tasks <= self.unfinished, "{tasks} ended of {}", self.unfinished);
        self.unfinished = self.unfinished.saturating_sub(tasks);
        if tasks > 0 && self.unfinished == 0 {
            self.epoch += 1;
            self.tell(local_stats);
        }
    }

    /// Adds all wakers to `told`: every waiter looks again.
    pub(super) fn tell(&mut self, local_stats: &mut Vec<Waker>) {
        local_stats.extend(std::mem::take(&mut self.waiting).into_values());
    }

    /// Ready once all accepted tasks have ended at one moment since the first look. Otherwise registers `waker`, and
    /// puts the previous one in its place, to be dropped after the lock.
    pub(super) fn poll_idle(&mut self, wait: &mut Wait, waker: &mut Option<Waker>) -> Poll<()> {
        let epoch = *wait.since.get_or_insert(self.epoch);
        if self.unfinished == 0 || epoch != self.epoch {
            return Poll::Ready(());
        }
        self.keep(wait, waker);
        Poll::Pending
    }

    /// Ready once all accepted tasks have ended and the workers have `gone`. Otherwise registers `waker`, as
    /// [`poll_idle`](Self::poll_idle) does.
    pub(super) fn poll_gone(&mut self, wait: &mut Wait, gone: bool, waker: &mut Option<Waker>) -> Poll<()> {
        if self.unfinished == 0 && gone {
            return Poll::Ready(());
        }
        self.keep(wait, waker);
        Poll::Pending
    }

    fn keep(&mut self, wait: &mut Wait, waker: &mut Option<Waker>) {
        if let Some(new) = waker.take() {
            let key = *wait.key.get_or_insert_with(|| {
                self.next_key += 1;
                self.next_key
            });
            *waker = self.waiting.insert(key, new);
        }
    }

    /// Cancels the wait. Returns its waker, to be dropped after the lock.
    #[must_use]
    pub(super) fn leave(&mut self, wait: &mut Wait) -> Option<Waker> {
        self.waiting.remove(&wait.key.take()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Given a waiter, when all tasks have ended and another begins before the next look, then that idle moment counts.
    #[test]
    fn an_idle_moment_counts_after_it_is_over() {
        let (mut idleness, mut wait, mut local_stats) = (Idleness::default(), Wait::default(), Vec::new());
        idleness.begun(2);
        let waker = || Waker::noop().clone();
        let mut look = |idleness: &mut Idleness| idleness.poll_idle(&mut wait, &mut Some(waker())).is_ready();
        assert!(!look(&mut idleness));
        idleness.finished(1, &mut local_stats);
        assert_eq!((look(&mut idleness), local_stats.len()), (false, 0));
        idleness.finished(1, &mut local_stats);
        idleness.begun(1);
        assert_eq!((look(&mut idleness), local_stats.len()), (true, 1));
        let mut wait = Wait::default();
        let mut ends =
            |idleness: &mut Idleness, gone| idleness.poll_gone(&mut wait, gone, &mut Some(waker())).is_ready();
        assert!(!ends(&mut idleness, true));
        idleness.finished(1, &mut local_stats);
        assert!(!ends(&mut idleness, false) && ends(&mut idleness, true));
    }

    /// Given a pool that is never idle, when other waits begin and are cancelled, then none leaves a waker, and the
    /// remaining waiter is woken.
    #[test]
    fn a_cancelled_wait_leaves_no_waker() {
        let (mut idleness, mut stays, mut local_stats) = (Idleness::default(), Wait::default(), Vec::new());
        idleness.begun(1);
        assert!(
            idleness
                .poll_idle(&mut stays, &mut Some(Waker::noop().clone()))
                .is_pending()
        );
        for n in 0..100 {
            let mut wait = Wait::default();
            for again in [false, true] {
                let mut waker = Some(Waker::noop().clone());
                let polled = match n % 2 {
                    0 => idleness.poll_idle(&mut wait, &mut waker),
                    _ => idleness.poll_gone(&mut wait, true, &mut waker),
                };
                assert!(polled.is_pending());
                assert_eq!((waker.is_some(), idleness.waiting.len()), (again, 2));
            }
            assert!(idleness.leave(&mut wait).is_some() && idleness.leave(&mut wait).is_none());
            assert_eq!(idleness.waiting.len(), 1);
        }
        idleness.finished(1, &mut local_stats);
        assert_eq!((local_stats.len(), idleness.leave(&mut stays).is_none()), (1, true));
    }
}
