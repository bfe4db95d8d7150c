//! Locks and atomics, swapped for loom's when the exhaustive models are built (`--cfg tollgate_loom`), and for shuttle's
//! when schedules are drawn at random (`--cfg tollgate_shuttle`).

#[cfg(not(any(tollgate_loom, tollgate_shuttle)))]
mod imp {
    pub use parking_lot::Mutex;
    pub(crate) use parking_lot::MutexGuard;
    pub(crate) use std::sync::OnceLock;
    pub use std::sync::atomic;
    pub(crate) use std::thread_local;
}

#[cfg(any(tollgate_loom, tollgate_shuttle))]
mod imp {
    #[cfg(tollgate_loom)]
    use loom as model;
    #[cfg(tollgate_shuttle)]
    use shuttle as model;

    pub(crate) use model::sync::MutexGuard;
    pub use model::sync::atomic;
    pub(crate) use model::thread_local;

    /// The model's mutex with parking_lot's face: nothing is poisoned.
    #[derive(Debug)]
    pub struct Mutex<T>(model::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// Holds `value`.
        pub fn new(value: T) -> Self {
            Self(model::sync::Mutex::new(value))
        }
        /// Waits for the lock.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        }
        #[allow(dead_code)] // Only code of a runtime looks without the lock.
        pub(crate) fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner)
        }
        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }

    /// The standard library's cell. A look is an access that the model sees, and may miss a value that another thread has just made.
    #[derive(Debug)]
    pub(crate) struct OnceLock<T> {
        made: atomic::AtomicBool,
        cell: std::sync::OnceLock<T>,
    }

    impl<T> OnceLock<T> {
        pub(crate) fn new() -> Self {
            Self {
                made: atomic::AtomicBool::new(false),
                cell: std::sync::OnceLock::new(),
            }
        }
        pub(crate) fn get(&self) -> Option<&T> {
            // Acquire: as that of the standard library. Pairs with the store in `get_or_init`.
            let made = self.made.load(atomic::Ordering::Acquire);
            self.cell.get().filter(|_| made)
        }
        pub(crate) fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
            let item = self.cell.get_or_init(make);
            // Release: pairs with the load in `get`.
            self.made.store(true, atomic::Ordering::Release);
            item
        }
    }

    impl<T: Default> Default for Mutex<T> {
        fn default() -> Self {
            Self::new(T::default())
        }
    }
}

pub use imp::*;
