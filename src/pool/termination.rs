//! Waits for the end of a pool, or for an idle moment. [`Idleness`] counts the tasks that have not ended, and keeps the
//! wakers, as plain data under the pool's lock. A cancelled wait removes its waker, because a pool may never end.

use super::engine::scheduler::{Engine, Kind};
use super::engine::waits::is_inside;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Poll, Waker};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// One moment since the first poll at which all accepted tasks have ended.
    Idle,
    /// All accepted tasks have ended, and the workers have gone.
    Gone,
}

pub(super) struct TerminationWait<'a, K: Kind> {
    core: &'a Arc<Engine<K>>,
    until: Until,
    wait: Wait,
}

impl<'a, K: Kind> TerminationWait<'a, K> {
    /// Returns `None` in a task of the pool, which would wait for itself.
    pub(super) fn of(core: &'a Arc<Engine<K>>, until: Until) -> Option<Self> {
        let wait = Wait::default();
        (!is_inside(&**core)).then_some(Self { core, until, wait })
    }

    /// Ready at the end of the wait. Until then, registers `waker`.
    pub(super) fn poll(&mut self, waker: &Waker) -> Poll<()> {
        // The old waker comes back here, and is dropped after the lock.
        let (until, wait, mut waker) = (self.until, &mut self.wait, Some(waker.clone()));
        self.core.transition(|state, _| {
            let gone = (until == Until::Gone).then_some(state.seats.is_empty());
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
    pub(super) unfinished: usize,
    /// The number of times that `unfinished` has become zero.
    epoch: u64,
    /// The waiters. A cancelled one removes its waker, because a pool may never be idle, or end.
    waiting: BTreeMap<u64, Waker>,
    next_key: u64,
}

impl Idleness {
    /// Counts ended tasks. Adds the wakers to wake after the lock to `wakers`.
    pub(super) fn finished(&mut self, tasks: usize, wakers: &mut Vec<Waker>) {
        debug_assert!(tasks <= self.unfinished, "{tasks} ended of {}", self.unfinished);
        self.unfinished = self.unfinished.saturating_sub(tasks);
        if tasks > 0 && self.unfinished == 0 {
            self.epoch += 1;
            self.tell(wakers);
        }
    }

    /// Adds all wakers to `wakers`: every waiter looks again.
    pub(super) fn tell(&mut self, wakers: &mut Vec<Waker>) {
        wakers.extend(std::mem::take(&mut self.waiting).into_values());
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
        let (mut idleness, mut wait, mut wakers) = (Idleness::default(), Wait::default(), Vec::new());
        idleness.unfinished += 2;
        let waker = || Waker::noop().clone();
        let mut look = |idleness: &mut Idleness| idleness.poll(&mut wait, None, &mut Some(waker())).is_ready();
        assert!(!look(&mut idleness));
        idleness.finished(1, &mut wakers);
        assert_eq!((look(&mut idleness), wakers.len()), (false, 0));
        idleness.finished(1, &mut wakers);
        idleness.unfinished += 1;
        assert_eq!((look(&mut idleness), wakers.len()), (true, 1));
        let mut wait = Wait::default();
        let mut ends =
            |idleness: &mut Idleness, gone| idleness.poll(&mut wait, Some(gone), &mut Some(waker())).is_ready();
        assert!(!ends(&mut idleness, true));
        idleness.finished(1, &mut wakers);
        assert!(!ends(&mut idleness, false) && ends(&mut idleness, true));
    }

    /// Given a pool that is never idle, when other waits begin and are cancelled, then none leaves a waker, and the
    /// remaining waiter is woken.
    #[test]
    fn a_cancelled_wait_leaves_no_waker() {
        let (mut idleness, mut stays, mut wakers) = (Idleness::default(), Wait::default(), Vec::new());
        idleness.unfinished += 1;
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
        idleness.finished(1, &mut wakers);
        assert_eq!((wakers.len(), idleness.leave(&mut stays).is_none()), (1, true));
    }
}
