//! Checks that the settings of stores share.

use tokio::runtime::Handle;
use tollgate::remote::RemoteError;

/// Checks how long a store may take to answer a call: 1 ms to a minute.
#[cfg(any(feature = "consul", feature = "etcd", feature = "postgres", feature = "redis"))]
pub(crate) fn check_time_out(given: std::time::Duration) -> Result<(), RemoteError> {
    use std::time::Duration;
    let allowed = (Duration::from_millis(1), Duration::from_secs(60));
    if given < allowed.0 || given > allowed.1 {
        let what = "time-out";
        return Err(RemoteError::Duration { what, given, allowed });
    }
    Ok(())
}

/// The current runtime.
pub(crate) fn runtime() -> Result<Handle, RemoteError> {
    Handle::try_current().map_err(|_| RemoteError::NoRuntime)
}
