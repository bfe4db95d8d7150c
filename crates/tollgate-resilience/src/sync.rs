//! Locks and atomics, swapped for the models' when those are built (`--cfg tollgate_loom`, `--cfg tollgate_shuttle`).

#[cfg(tollgate_loom)]
use loom as model;
#[cfg(tollgate_shuttle)]
use shuttle as model;

#[cfg(any(tollgate_loom, tollgate_shuttle))]
pub(crate) use model::sync::atomic;
#[cfg(not(any(tollgate_loom, tollgate_shuttle)))]
pub(crate) use {parking_lot::Mutex, std::sync::atomic};

/// The model's mutex with parking_lot's face: nothing is poisoned.
#[cfg(any(tollgate_loom, tollgate_shuttle))]
#[derive(Debug)]
pub(crate) struct Mutex<T>(model::sync::Mutex<T>);

#[cfg(any(tollgate_loom, tollgate_shuttle))]
impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(model::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> model::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
