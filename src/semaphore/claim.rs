//! How a policy stands in line: at a place that is kept until the policy's next attempt redeems what it was granted.

use super::atomic::Semaphore;
use crate::sync::queue::{Key, Queue, State};
use crate::sync::shim::MutexGuard;
use std::task::Waker;

impl Semaphore {
    /// Joins the line, and holds a place even when the permits are free. Returns the word by which it is found again.
    pub(super) fn join_as_claim(&self, n: i64, waker: &Waker) -> u64 {
        let (need, state) = match self.join_kept(n, waker.clone()) {
            Key::TAKEN => (n as u64, State::Granted),
            // Nothing is granted any more: the next attempt finds it closed.
            Key::CLOSED => (0, State::Closed),
            key => {
                // Lowered since the policy looked, it has no place here. If that is after the join, it is told so.
                if self.is_beyond_limit(n as u64) && !seeded!("semaphore_joins_beyond_its_limit") {
                    waker.wake_by_ref();
                }
                return key.to_word();
            }
        };
        let key = self.queue.lock().push_ended(need, state);
        if !seeded!("semaphore_quiet_claim") {
            waker.wake_by_ref();
        }
        key.to_word()
    }

    /// The owner of a claim, who wants `n`, looks. A claim whose wait has ended is given up by that; so is one for another
    /// number, which somebody else at this semaphore has made.
    pub(super) fn look_at_claim(&self, word: u64, n: u64) -> State {
        let mut queue = self.queue.lock();
        let Some(key) = queue.key_of(word) else {
            return State::Free;
        };
        if queue.state(key).waits() {
            return State::Waiting;
        }
        let (closed, (state, need), spare) = (queue.closed, queue.give_up(key), queue.spare());
        drop(queue);
        drop(spare);
        if state == State::Granted && (closed || need != n) {
            self.release(need as i64);
            return if closed { State::Closed } else { State::Free };
        }
        state
    }

    /// The owner of a claim goes. What it had been granted goes to the next.
    pub(super) fn leave_claim(&self, word: u64) {
        let mut queue = self.queue.lock();
        let Some(key) = queue.key_of(word) else {
            return;
        };
        self.leave_kept(queue, key);
    }

    /// The owner of a kept place goes.
    pub(super) fn leave_kept(&self, mut queue: MutexGuard<'_, Queue>, key: Key) {
        let (state, need) = queue.give_up(key);
        if state == State::Free {
            self.leave_place(queue, key);
            return;
        }
        let spare = queue.spare();
        drop(queue);
        drop(spare);
        if state == State::Granted && !seeded!("semaphore_leaks_granted") {
            self.release(need as i64);
        }
    }

    /// Where a claim stands.
    pub(super) fn state_of_claim(&self, word: u64) -> State {
        let mut queue = self.queue.lock();
        queue.key_of(word).map_or(State::Free, |key| queue.state(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_for_one_number_is_not_redeemed_for_another() {
        for wanted in [1, 3] {
            let semaphore = Semaphore::new(3);
            let held = semaphore.try_acquire_many(2).unwrap();
            let claim = semaphore.join_as_claim(2, Waker::noop());
            assert_eq!(semaphore.look_at_claim(claim, wanted), State::Waiting);
            drop(held);
            assert_eq!(semaphore.in_use(), 2);
            assert_eq!(semaphore.look_at_claim(claim, wanted), State::Free);
            assert_eq!((semaphore.in_use(), semaphore.available_permits()), (0, 3));
        }
    }
}
