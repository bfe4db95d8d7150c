//! Locks and atomics, swapped for loom's when the models are built (`--cfg tollgate_loom`).

#[cfg(not(tollgate_loom))]
mod imp {
    pub(crate) use parking_lot::{Mutex, MutexGuard};
    pub(crate) use std::sync::atomic;
    pub(crate) use std::thread_local;
}

#[cfg(tollgate_loom)]
mod imp {
    pub(crate) use loom::sync::MutexGuard;
    pub(crate) use loom::sync::atomic;
    pub(crate) use loom::thread_local;

    /// loom's mutex with parking_lot's face: nothing is poisoned.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        }
    }

    impl<T: Default> Default for Mutex<T> {
        fn default() -> Self {
            Self::new(T::default())
        }
    }
}

pub(crate) use imp::*;
