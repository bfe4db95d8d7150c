//! A value that shares no cache line with another: what one thread writes often does not slow down what others read
//! beside it. Two lines, since processors fetch them in pairs.

use std::ops::Deref;

#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Apart<T>(T);

impl<T> Apart<T> {
    pub(super) fn new(value: T) -> Self {
        Self(value)
    }
}

impl<T> Deref for Apart<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}
