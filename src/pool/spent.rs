//! What is left of tasks that have run: memory, which goes back to those that submit.
//!
//! A small closure leaves none. Of others an allocator is slow where one thread makes what another frees, and slower still
//! where both do so at once. So workers free little themselves: they hand over what is left of tasks that are not large
//! when they take the lock of the pool for new ones; from there it comes into the inbox, and each submission, which has
//! the lock of that, frees what is left of two.

use super::entry::Left;

/// How many lie with the pool's lock, at most, and as many again in the inbox; workers free what is beyond.
const MOST: usize = 128;
/// How many a worker gathers until then, at most.
const GATHERED: usize = 16;
/// What takes more bytes is freed at once.
const SMALL: usize = 256;

/// Of one worker.
#[derive(Default)]
pub(super) struct Gathered<'j>(Vec<Left<'j>>);

impl<'j> Gathered<'j> {
    /// What is left of a task that has run. Not to be called under a lock.
    #[inline]
    pub(super) fn add(&mut self, left: Left<'j>) {
        if self.0.len() == GATHERED {
            self.0.clear();
        }
        if left.size() <= SMALL {
            self.0.push(left);
        }
    }
}

/// Of the whole pool.
#[derive(Default)]
pub(super) struct Spent<'j>(Vec<Left<'j>>);

impl<'j> Spent<'j> {
    /// Takes over as much as there is room for.
    pub(super) fn take_over(&mut self, gathered: &mut Gathered<'j>) {
        let fit = gathered.0.len().min(MOST - self.0.len());
        self.0.extend(gathered.0.drain(..fit));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What one submission frees, after the lock.
    #[inline]
    #[must_use]
    pub(super) fn two(&mut self) -> [Option<Left<'j>>; 2] {
        [self.0.pop(), self.0.pop()]
    }

    /// What the submission of `n` tasks frees, after the lock.
    pub(super) fn many(&mut self, n: usize) -> impl Iterator<Item = Left<'j>> {
        let rest = self.0.len().saturating_sub(2 * n);
        self.0.drain(rest..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::caller::Caller;
    use crate::pool::entry::Entry;
    use crate::pool::wishes::Spec;

    fn ran<'j>(task: impl FnOnce() + Send + 'j) -> Left<'j> {
        let (_, left) = Entry::own(Caller::current(), task, &Spec::DEFAULT).run_and_leave(&mut |_| ());
        left.expect("it is too large to lie in the entry")
    }

    #[test]
    fn no_more_is_gathered_or_kept_than_so_many_and_nothing_large() {
        let (mut gathered, mut spent) = (Gathered::default(), Spent::default());
        let (large, small) = ([0u8; SMALL], [0u8; SMALL - 1]);
        gathered.add(ran(move || _ = std::hint::black_box(large)));
        assert_eq!(gathered.0.len(), 0);
        gathered.add(ran(move || _ = std::hint::black_box(small)));
        assert_eq!(gathered.0.len(), 1);
        for n in 2..=GATHERED {
            gathered.add(ran(move || _ = std::hint::black_box(small)));
            assert_eq!(gathered.0.len(), n);
        }
        gathered.add(ran(move || _ = std::hint::black_box(small)));
        assert_eq!(gathered.0.len(), 1);
        for n in 1..=MOST + 1 {
            gathered.add(ran(move || _ = std::hint::black_box(small)));
            gathered.0.truncate(1);
            spent.take_over(&mut gathered);
            assert_eq!(spent.0.len(), n.min(MOST));
        }
        assert_eq!(gathered.0.len(), 1);
    }

    #[test]
    fn each_submission_frees_two() {
        let mut spent = Spent::default();
        let mut gathered = Gathered::default();
        let large = [0u8; 100];
        (0..7).for_each(|_| gathered.add(ran(move || _ = std::hint::black_box(large))));
        spent.take_over(&mut gathered);
        assert_eq!(spent.many(2).count(), 4);
        assert_eq!(spent.two().iter().flatten().count(), 2);
        assert_eq!(spent.two().iter().flatten().count(), 1);
        assert_eq!(spent.many(1).count(), 0);
    }
}
