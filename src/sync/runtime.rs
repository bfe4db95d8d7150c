//! The runtime that runs a pool's runners: tokio's, or the model's for random schedules.

#[cfg(not(tollgate_shuttle))]
mod imp {
    use tokio::runtime::Handle;
    pub(crate) use tokio::task::AbortHandle;

    #[derive(Clone)]
    pub(crate) struct Runtime(Handle);

    impl Runtime {
        pub(crate) fn of(handle: &Handle) -> Self {
            Self(handle.clone())
        }

        /// Returns the caller's runtime, if it is in one.
        pub(crate) fn current() -> Option<Self> {
            Handle::try_current().ok().map(Self)
        }

        /// Spawns the task. If the runtime is gone, the task is dropped.
        pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
            self.0.spawn(task).abort_handle()
        }
    }
}

#[cfg(tollgate_shuttle)]
mod imp {
    use super::super::shim::Mutex;
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::task::{Poll, Waker};

    /// Aborts a task; the model's own handle ends none. Holds the aborted flag and the waker to wake.
    #[derive(Clone, Default)]
    pub(crate) struct AbortHandle(Arc<Mutex<(bool, Option<Waker>)>>);

    impl AbortHandle {
        pub(crate) fn abort(&self) {
            let waker = {
                let mut state = self.0.lock();
                state.0 = true;
                state.1.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    #[derive(Clone)]
    pub(crate) struct Runtime;

    impl Runtime {
        pub(crate) fn of(_: &tokio::runtime::Handle) -> Self {
            Self
        }

        pub(crate) fn current() -> Option<Self> {
            Some(Self)
        }

        pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
            let handle = AbortHandle::default();
            let (seen, mut task) = (handle.clone(), Box::pin(task));
            let task = shuttle::future::spawn(poll_fn(move |cx| {
                let aborted = {
                    let mut state = seen.0.lock();
                    state.1 = Some(cx.waker().clone());
                    state.0
                };
                if aborted {
                    Poll::Ready(())
                } else {
                    task.as_mut().poll(cx)
                }
            }));
            // Dropping the handle would detach the task from the model's final wait.
            std::mem::forget(task);
            handle
        }
    }
}

pub(crate) use imp::*;
