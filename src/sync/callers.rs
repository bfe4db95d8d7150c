//! The callers in a queue of waiters: a list in the order in which they came.

use slab::Slab;
use std::task::Waker;

/// An emptied list keeps the memory of so many.
const KEPT: usize = 8;

/// No caller.
const NONE: usize = usize::MAX;

/// Before a caller that does not wait any more.
const GRANTED: usize = usize::MAX - 1;

/// The callers that wait, from the first to the last, and those that were granted and have not looked since, in no order.
pub(super) struct Callers {
    slab: Slab<Caller>,
    first: usize,
    last: usize,
    waiting: usize,
}

pub(super) struct Caller {
    pub(super) age: u64,
    pub(super) units: u64,
    pub(super) waker: Waker,
    before: usize,
    behind: usize,
}

impl Caller {
    pub(super) fn waits(&self) -> bool {
        self.before != GRANTED
    }
}

impl Default for Callers {
    fn default() -> Self {
        Self {
            slab: Slab::new(),
            first: NONE,
            last: NONE,
            waiting: 0,
        }
    }
}

impl Callers {
    /// The number of those that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// The first that waits, and its key.
    pub(super) fn first(&self) -> Option<(usize, &Caller)> {
        self.slab.get(self.first).map(|first| (self.first, first))
    }

    /// The waker of this caller, if it waits.
    pub(super) fn waker(&mut self, key: usize) -> Option<&mut Waker> {
        let caller = self.slab.get_mut(key)?;
        caller.waits().then_some(&mut caller.waker)
    }

    /// The last from now on: its key, until it is removed.
    pub(super) fn push(&mut self, age: u64, units: u64, waker: Waker) -> usize {
        let key = self.slab.insert(Caller {
            age,
            units,
            waker,
            before: self.last,
            behind: NONE,
        });
        match self.slab.get_mut(self.last) {
            Some(last) => last.behind = key,
            None => self.first = key,
        }
        (self.last, self.waiting) = (key, self.waiting + 1);
        key
    }

    /// The first does not wait any more. It stays until it is removed.
    pub(super) fn grant(&mut self) -> Option<(u64, Waker)> {
        let first = self.slab.get_mut(self.first)?;
        first.before = GRANTED;
        // Cloning it would run foreign code, and it is not needed again.
        let granted = (first.units, std::mem::replace(&mut first.waker, Waker::noop().clone()));
        let behind = first.behind;
        self.unlink(NONE, behind);
        Some(granted)
    }

    pub(super) fn remove(&mut self, key: usize) -> Option<Caller> {
        let caller = self.slab.try_remove(key)?;
        if caller.waits() {
            self.unlink(caller.before, caller.behind);
        }
        if self.slab.is_empty() && self.slab.capacity() > KEPT {
            self.slab = Slab::new();
        }
        Some(caller)
    }

    fn unlink(&mut self, before: usize, behind: usize) {
        self.waiting -= 1;
        match self.slab.get_mut(before) {
            Some(before) => before.behind = behind,
            None => self.first = behind,
        }
        match self.slab.get_mut(behind) {
            Some(behind) => behind.before = before,
            None => self.last = before,
        }
    }

    /// Removes all that wait.
    pub(super) fn end(&mut self) -> impl Iterator<Item = Waker> + '_ {
        std::iter::from_fn(|| self.remove(self.first).map(|caller| caller.waker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[derive(Default)]
    struct Model {
        waiting: Vec<(u64, usize)>,
        granted: Vec<(u64, usize)>,
    }

    /// Given random joins, grants and leaves, then those that wait stand in the order in which they came.
    #[test]
    fn any_program_keeps_the_order() {
        let (mut rng, mut age) = (Rng::new(5), 0);
        let (mut callers, mut model) = (Callers::default(), Model::default());
        for step in 0..30_000 {
            // Grows and shrinks in turns.
            let joins = if step / 1_000 % 2 == 0 { 6 } else { 3 };
            match rng.draw() % 10 {
                below if below < joins => {
                    age += 1;
                    model.waiting.push((age, callers.push(age, age, Waker::noop().clone())));
                }
                6 | 7 => {
                    let granted = (!model.waiting.is_empty()).then(|| model.waiting.remove(0));
                    assert_eq!(callers.grant().map(|(units, _)| units), granted.map(|(age, _)| age));
                    model.granted.extend(granted);
                }
                choice => {
                    let list = if choice == 8 {
                        &mut model.granted
                    } else {
                        &mut model.waiting
                    };
                    if !list.is_empty() {
                        let (age, key) = list.remove(rng.draw() as usize % list.len());
                        let caller = callers.remove(key).unwrap();
                        assert_eq!((caller.age, caller.waits()), (age, choice != 8));
                    }
                }
            }
            assert_eq!(callers.waiting(), model.waiting.len());
            assert_eq!(
                callers.first().map(|(key, first)| (first.age, key)),
                model.waiting.first().copied()
            );
        }
        assert_eq!(callers.end().count(), model.waiting.len());
        model
            .granted
            .iter()
            .for_each(|&(age, key)| assert_eq!(callers.remove(key).unwrap().age, age));
        assert!(callers.first().is_none() && callers.slab.is_empty());
        assert_eq!((callers.first, callers.last), (NONE, NONE));
    }

    #[test]
    fn an_emptied_list_gives_its_memory_back() {
        let mut callers = Callers::default();
        let keys: Vec<_> = (0..10_000)
            .map(|age| callers.push(age, 1, Waker::noop().clone()))
            .collect();
        keys.into_iter().for_each(|key| drop(callers.remove(key)));
        assert!(callers.slab.capacity() <= KEPT);
    }
}
