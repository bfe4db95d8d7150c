//! Who works for the family of a pool, waits for something of that pool, and has found no slot of it. Plain data, for the
//! pool's lock.
//!
//! They could run its tasks in passing. While all slots are taken they need not: a worker that has one looks for the next
//! task. Who has one in passing does not, and the pool's own workers may have nobody to run on but those who wait. So
//! whenever a slot is given up they look again.

use std::task::Waker;

#[derive(Default)]
pub(super) struct Relatives(Vec<Waker>);

impl Relatives {
    /// `waker` is woken at the next call. It is taken if it is a new one; what is left of it is to be dropped after the lock.
    pub(super) fn wait(&mut self, waker: &mut Option<Waker>) {
        let new = waker.take_if(|waker| !self.0.iter().any(|known| known.will_wake(waker)));
        self.0.extend(new);
    }

    /// Those to be woken, after the lock.
    #[must_use]
    pub(super) fn call(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.0)
    }
}
