//! Waits for the end of a pool, or for an idle moment. [`Idleness`] counts the tasks that have not ended, and keeps the
//! wakers, as plain data under the pool's lock. A cancelled wait removes its waker, because a pool may never end.

use super::engine::scheduler::{Engine, Kind};
use super::engine::state::State;
use super::engine::waits::is_inside;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Poll, Waker};

pub(super) struct TerminationWait<'a, K: Kind> {
    core: &'a Arc<Engine<K>>,
    wait: Wait,
}

impl<'a, K: Kind> TerminationWait<'a, K> {
    /// Returns `None` in a task of the pool, which would wait for itself.
    pub(super) fn of(core: &'a Arc<Engine<K>>) -> Option<Self> {
        let wait = Wait::default();
        (!is_inside(&**core)).then_some(Self { core, wait })
    }

    /// Ready once all accepted tasks have ended at one moment since the first poll. Until then, registers `waker`.
    pub(super) fn poll_idle(&mut self, waker: &Waker) -> Poll<()> {
        self.poll_for(waker, |_| None)
    }

    /// Ready once all accepted tasks have ended and the workers have gone. Until then, registers `waker`.
    pub(super) fn poll(&mut self, waker: &Waker) -> Poll<()> {
        self.poll_for(waker, |state| Some(!state.has_workers()))
    }

    fn poll_for(&mut self, waker: &Waker, gone: impl FnOnce(&State<K>) -> Option<bool>) -> Poll<()> {
        // The old waker comes back here, and is dropped after the lock.
        let (wait, mut waker) = (&mut self.wait, Some(waker.clone()));
        self.core.transition(|state, _| {
            let gone = gone(state);
            state.idleness.poll(wait, gone, &mut waker)
        })
    }
}

impl<K: Kind> Drop for TerminationWait<'_, K> {
    fn drop(&mut self) {
        let waker = self.core.look().idleness.leave(&mut self.wait);
        drop(waker);
    }
}

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

    /// Ready once all accepted tasks have ended: at one moment since the first look, or now, if the workers must have
    /// `gone` as well. Otherwise registers `waker`, and puts the previous one in its place, to be dropped after the lock.
    fn poll(&mut self, wait: &mut Wait, gone: Option<bool>, waker: &mut Option<Waker>) -> Poll<()> {
        let since = *wait.since.get_or_insert(self.epoch);
        let is_over = gone.map_or(since != self.epoch || self.unfinished == 0, |gone| {
            gone && self.unfinished == 0
        });
        if is_over {
            return Poll::Ready(());
        }
        if let Some(new) = waker.take() {
            let key = *wait.key.get_or_insert_with(|| {
                self.next_key += 1;
                self.next_key
            });
            *waker = self.waiting.insert(key, new);
        }
        Poll::Pending
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
        let mut look = |idleness: &mut Idleness| idleness.poll(&mut wait, None, &mut Some(waker())).is_ready();
        assert!(!look(&mut idleness));
        idleness.finished(1, &mut local_stats);
        assert_eq!((look(&mut idleness), local_stats.len()), (false, 0));
        idleness.finished(1, &mut local_stats);
        idleness.begun(1);
        assert_eq!((look(&mut idleness), local_stats.len()), (true, 1));
        let mut wait = Wait::default();
        let mut ends =
            |idleness: &mut Idleness, gone| idleness.poll(&mut wait, Some(gone), &mut Some(waker())).is_ready();
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
                .poll(&mut stays, None, &mut Some(Waker::noop().clone()))
                .is_pending()
        );
        for n in 0..100 {
            let mut wait = Wait::default();
            for again in [false, true] {
                let mut waker = Some(Waker::noop().clone());
                let polled = idleness.poll(&mut wait, (n % 2 == 1).then_some(true), &mut waker);
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
