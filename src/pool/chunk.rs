//! Tasks that were submitted together, side by side in one allocation: most of what a small task costs is memory that one
//! thread makes, another reads, and a third frees.
//!
//! They stand in the queue together, and leave it one by one or in parts: whoever has the entry of a task is the only one
//! who has, and runs, refuses or hands it back as any other.

use super::cell::Ran;
use super::entry::run_quietly;
use super::hooks::{Payload, drop_quietly};
use crate::sync::shim::Mutex;
use std::sync::Arc;

/// How many, at most. As many as a worker takes at once: more, and two would write to the same memory more often.
const MOST: usize = 16;
/// How many bytes they take together, but for one that is larger by itself.
const BYTES: usize = 1000;

pub(super) struct Chunk<F>(Box<[Mutex<Option<F>>]>);

impl<F> Chunk<F> {
    /// Takes the next tasks from `tasks`.
    pub(super) fn of(tasks: impl Iterator<Item = F>) -> Arc<Self> {
        let most = (BYTES / size_of::<Mutex<Option<F>>>()).clamp(1, MOST);
        let tasks = tasks.take(most).map(|task| Mutex::new(Some(task)));
        Arc::new(Self(tasks.collect()))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The task of this number, if it has neither started nor been taken.
    #[inline]
    pub(super) fn take(&self, at: usize) -> Option<F> {
        self.0[at].lock().take()
    }

    /// All that have neither started nor been taken.
    pub(super) fn take_all(&self) -> Vec<F> {
        (0..self.len()).filter_map(|at| self.take(at)).collect()
    }
}

/// A chunk without its type.
pub(super) trait Parts: Send + Sync {
    /// Runs the task of this number, once, and drops all of it that is a user's.
    fn run(&self, at: usize, orphan: &mut dyn FnMut(Payload)) -> Ran;
    /// Drops it, if it has not started.
    fn refuse(&self, at: usize);
}

impl<F: FnOnce() + Send> Parts for Chunk<F> {
    #[inline]
    fn run(&self, at: usize, orphan: &mut dyn FnMut(Payload)) -> Ran {
        self.take(at).map_or(Ran::Gone, |task| run_quietly(task, orphan))
    }

    fn refuse(&self, at: usize) {
        drop_quietly(self.take(at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_holds_no_more_than_so_many_tasks_and_bytes() {
        assert_eq!(Chunk::of(0..100u64).len(), MOST);
        assert_eq!(Chunk::of((0..100).map(|_| [0u64; 30])).len(), 3);
        assert_eq!(Chunk::of((0..100).map(|_| [0u64; 300])).len(), 1);
        let three = Chunk::of(0..3);
        assert_eq!(
            (three.len(), three.take(2), three.take(2), three.take(0)),
            (3, Some(2), None, Some(0))
        );
    }
}
