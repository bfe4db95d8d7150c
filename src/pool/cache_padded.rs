//! Gives a value cache lines of its own, so that one thread's frequent writes do not slow down reads of its neighbours.
//! It takes two lines, because processors fetch them in pairs.

use std::ops::Deref;

#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CachePadded<T>(T);

impl<T> CachePadded<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(value)
    }
}

impl<T> Deref for CachePadded<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}
