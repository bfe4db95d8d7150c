//! The tracing span in which a task was submitted, and runs.

#[cfg(feature = "tracing")]
use std::sync::Arc;

/// The span of the submitter, kept with the task until that ends: nothing without the feature `tracing`. A clone does not call
/// the subscriber, because a clone may be made under a lock.
#[derive(Clone)]
pub(crate) struct Caller {
    #[cfg(feature = "tracing")]
    span: Option<Arc<tracing::Span>>,
}

impl Caller {
    /// Captures the current span. Calls the subscriber, so never call it under a lock.
    #[inline]
    pub(crate) fn current() -> Self {
        #[cfg(feature = "tracing")]
        let span = tracing::Span::current();
        Self {
            #[cfg(feature = "tracing")]
            span: (!span.is_none()).then(|| Arc::new(span)),
        }
    }

    #[inline]
    pub(crate) fn within<T>(&self, run: impl FnOnce() -> T) -> T {
        #[cfg(feature = "tracing")]
        if let Some(span) = &self.span {
            return span.in_scope(run);
        }
        run()
    }

    /// Returns true if there is nothing to keep.
    #[inline]
    pub(crate) fn is_nothing(&self) -> bool {
        #[cfg(feature = "tracing")]
        if self.span.is_some() {
            return false;
        }
        true
    }
}
