//! What a task keeps of its submitter: the tracing span in which it runs, and the task that may wait for it.

use super::engine::waits::{Holder, Task, current};
use std::sync::Arc;

#[cfg(feature = "tracing")]
mod imp {
    use std::sync::Arc;
    use tracing::Span;

    /// A clone does not call the subscriber: one may be made under a lock.
    #[derive(Clone)]
    pub(super) struct Spanned(Option<Arc<Span>>);

    impl Spanned {
        /// It calls the subscriber: not under a lock.
        pub(super) fn current() -> Self {
            let span = Span::current();
            Self((!span.is_none()).then(|| Arc::new(span)))
        }

        pub(super) fn within<T>(&self, run: impl FnOnce() -> T) -> T {
            match &self.0 {
                Some(span) => span.in_scope(run),
                None => run(),
            }
        }

        /// True where there is nothing to keep.
        pub(super) fn is_nothing(&self) -> bool {
            self.0.is_none()
        }
    }
}

#[cfg(not(feature = "tracing"))]
mod imp {
    /// Nothing, without the feature `tracing`.
    #[derive(Clone)]
    pub(super) struct Spanned;

    impl Spanned {
        #[inline(always)]
        pub(super) fn current() -> Self {
            Self
        }

        #[inline(always)]
        pub(super) fn within<T>(&self, run: impl FnOnce() -> T) -> T {
            run()
        }

        #[inline(always)]
        pub(super) fn is_nothing(&self) -> bool {
            true
        }
    }
}

#[derive(Clone)]
pub(crate) struct Caller {
    span: imp::Spanned,
    /// What leads to the task that submitted it, where that holds permits, as long as there is a handle.
    waiter: Option<Arc<dyn Task>>,
}

impl Caller {
    /// Of a task for which nothing waits, or that knows itself what does. It calls the subscriber: not under a lock.
    #[inline]
    pub(crate) fn current() -> Self {
        let span = imp::Spanned::current();
        Self { span, waiter: None }
    }

    /// Of a task on a thread, which has a handle.
    #[inline]
    pub(super) fn waits() -> Self {
        let waiter = current().map(|submitter| Holder::of(Arc::new([]), Some(submitter)) as _);
        Self {
            waiter,
            ..Self::current()
        }
    }

    /// No task will wait for it.
    pub(super) fn cut(&self) {
        if let Some(waiter) = &self.waiter {
            waiter.record().cut();
        }
    }

    #[inline]
    pub(super) fn waiter(&self) -> Option<&Arc<dyn Task>> {
        self.waiter.as_ref()
    }

    #[inline]
    pub(crate) fn within<T>(&self, run: impl FnOnce() -> T) -> T {
        self.span.within(run)
    }

    /// True where there is nothing to keep.
    #[inline]
    pub(crate) fn is_nothing(&self) -> bool {
        self.span.is_nothing()
    }
}
