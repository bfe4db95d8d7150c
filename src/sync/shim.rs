//! Locks and atomics, swapped for loom's when the exhaustive models are built (`--cfg tollgate_loom`), and for shuttle's
//! when schedules are drawn at random (`--cfg tollgate_shuttle`).

#[cfg(not(any(tollgate_loom, tollgate_shuttle)))]
mod imp {
    pub(crate) use parking_lot::Mutex;
    pub(crate) use parking_lot::MutexGuard;
    pub(crate) use std::sync::atomic;
    pub(crate) use std::thread_local;
}

#[cfg(any(tollgate_loom, tollgate_shuttle))]
mod imp {
    #[cfg(tollgate_loom)]
    use loom as model;
    #[cfg(tollgate_shuttle)]
    use shuttle as model;

    pub(crate) use model::sync::MutexGuard;
    pub(crate) use model::sync::atomic;
    pub(crate) use model::thread_local;

    /// The model's mutex with parking_lot's face: nothing is poisoned.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(model::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(model::sync::Mutex::new(value))
        }
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        }
        #[allow(dead_code)] // Only code of a runtime looks without the lock.
        pub(crate) fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner)
        }
    }

    impl<T: Default> Default for Mutex<T> {
        fn default() -> Self {
            Self::new(T::default())
        }
    }
}

pub(crate) use imp::*;

/// A constant function; in the models not a constant one, since their locks and atomics have no constant constructors.
macro_rules! const_fn {
    ($(#[$attribute:meta])* $visibility:vis fn $($function:tt)*) => {
        #[cfg(not(any(tollgate_loom, tollgate_shuttle)))]
        $(#[$attribute])*
        $visibility const fn $($function)*
        #[cfg(any(tollgate_loom, tollgate_shuttle))]
        $(#[$attribute])*
        $visibility fn $($function)*
    };
}
pub(crate) use const_fn;
