//! The lock of levels, swapped for loom's when the models are built (`--cfg tollgate_loom`).

#[cfg(not(tollgate_loom))]
pub(crate) use parking_lot::{Mutex, MutexGuard};

/// Reads the state of a lock, so that the memory around it is on its way.
#[cfg(not(tollgate_loom))]
#[inline]
pub(crate) fn prefetch<T>(mutex: &Mutex<T>) {
    let _ = mutex.is_locked();
}

#[cfg(tollgate_loom)]
mod imp {
    pub(crate) fn prefetch<T>(_: &Mutex<T>) {}

    pub(crate) use loom::sync::MutexGuard;

    /// The model's lock, which is never poisoned.
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
}
#[cfg(tollgate_loom)]
pub(crate) use imp::*;
