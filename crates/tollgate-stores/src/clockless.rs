//! What stores that report no time support: permits. The builder leases the capacity of a rate, as permits.

use tollgate::remote::{RemoteError, Rule, StoreError};

/// Checks that `rule` counts permits.
///
/// # Errors
/// [`RemoteError::Unsupported`].
pub(crate) fn permits_only(rule: &Rule, store: &'static str) -> Result<(), RemoteError> {
    let what = match rule {
        Rule::Permits { .. } => return Ok(()),
        Rule::Window { .. } => "windows: Redis and PostgreSQL can",
        _ => "rates but by leased capacity: Redis and PostgreSQL can",
    };
    Err(RemoteError::Unsupported { what, store })
}

/// The number of permits.
///
/// # Errors
/// [`StoreError::Refused`] for other rules.
pub(crate) fn permits(rule: &Rule) -> Result<u64, StoreError> {
    match *rule {
        Rule::Permits { limit } => Ok(limit),
        _ => Err(StoreError::Refused {
            why: "it counts permits, and neither rates nor windows".into(),
        }),
    }
}
