//! Deferred frees: submitters free the memory of tasks that have run.
//!
//! A small closure leaves no memory. An allocator is slow if one thread frees the memory that another allocated, and slower if
//! both do so at once. So workers free little themselves. They pass on the memory of tasks that are not large when they take the
//! pool's lock for new ones. From there it moves into the injector. Each submission takes the memory of two tasks under the injector's
//! lock, and frees it afterwards.

use super::entry::DeferredFree;

/// The maximum number of items behind the pool's lock, and again in the injector. Workers free the excess.
const MOST: usize = 128;
/// The maximum number of items that a worker gathers until it takes the lock.
const GATHERED: usize = 16;
/// The maximum size in bytes of a gathered item. A worker frees larger ones at once.
const SMALL: usize = 256;

/// The items of one worker.
#[derive(Default)]
pub(in crate::pool) struct GatheredFrees<'j>(Vec<DeferredFree<'j>>);

impl<'j> GatheredFrees<'j> {
    /// Adds the memory of a task that has run. Frees memory, so callers hold no lock.
    #[inline]
    pub(in crate::pool) fn add(&mut self, left: DeferredFree<'j>) {
        if self.0.len() == GATHERED {
            self.0.clear();
        }
        if left.size() <= SMALL {
            self.0.push(left);
        }
    }
}

/// The items of the whole pool.
#[derive(Default)]
pub(in crate::pool) struct DeferredFrees<'j>(Vec<DeferredFree<'j>>);

impl<'j> DeferredFrees<'j> {
    /// Takes over as many items as fit.
    pub(in crate::pool) fn take_over(&mut self, gathered: &mut GatheredFrees<'j>) {
        let fit = gathered.0.len().min(MOST - self.0.len());
        self.0.extend(gathered.0.drain(..fit));
    }

    pub(in crate::pool) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes out two items, which one submission frees after it has released the lock.
    #[inline]
    #[must_use]
    pub(in crate::pool) fn two(&mut self) -> [Option<DeferredFree<'j>>; 2] {
        [self.0.pop(), self.0.pop()]
    }

    /// Takes out `2 * n` items, which the submission of `n` tasks frees after it has released the lock.
    pub(in crate::pool) fn many(&mut self, n: usize) -> impl Iterator<Item = DeferredFree<'j>> {
        let rest = self.0.len().saturating_sub(2 * n);
        self.0.drain(rest..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::caller::Caller;
    use crate::pool::task_options::TaskOptions;
    use crate::pool::threads::entry::Entry;

    fn ran<'j>(task: impl FnOnce() + Send + 'j) -> DeferredFree<'j> {
        let (_, left) = Entry::own(Caller::current(), task, &TaskOptions::DEFAULT).run_and_leave(&mut |_| ());
        left.expect("the closure is too large for the entry")
    }

    #[test]
    fn deferred_frees_are_bounded_and_exclude_large_items() {
        let (mut gathered, mut deferred) = (GatheredFrees::default(), DeferredFrees::default());
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
            deferred.take_over(&mut gathered);
            assert_eq!(deferred.0.len(), n.min(MOST));
        }
        assert_eq!(gathered.0.len(), 1);
    }

    #[test]
    fn each_submission_frees_two_items() {
        let mut deferred = DeferredFrees::default();
        let mut gathered = GatheredFrees::default();
        let large = [0u8; 100];
        (0..7).for_each(|_| gathered.add(ran(move || _ = std::hint::black_box(large))));
        deferred.take_over(&mut gathered);
        assert_eq!(deferred.many(2).count(), 4);
        assert_eq!(deferred.two().iter().flatten().count(), 2);
        assert_eq!(deferred.two().iter().flatten().count(), 1);
        assert_eq!(deferred.many(1).count(), 0);
    }
}
