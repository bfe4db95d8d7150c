//! Checks that the settings of limiters and of their stores share.

use super::error::RemoteError;
use std::time::Duration;
use tokio::runtime::Handle;

/// Checks that a duration is in its range.
///
/// # Errors
/// [`RemoteError::Duration`] when it is out of its range.
pub(super) fn check(what: &'static str, given: Duration, allowed: (Duration, Duration)) -> Result<(), RemoteError> {
    if given < allowed.0 || given > allowed.1 {
        return Err(RemoteError::Duration { what, given, allowed });
    }
    Ok(())
}

/// The current runtime.
pub(super) fn runtime() -> Result<Handle, RemoteError> {
    Handle::try_current().map_err(|_| RemoteError::NoRuntime)
}
