//! The check of server names.

use tollgate::remote::RemoteError;

/// Checks that each of `servers`, `host:port` by commas, may be connected to as required: by name, and all encrypted or none.
///
/// # Errors
/// [`RemoteError::Address`].
pub(super) fn check(servers: &str, encrypted: bool) -> Result<(), RemoteError> {
    // A path after the last of them is the node above all of ours.
    for server in servers.split(',') {
        let (scheme, rest) = server.split_once("://").unwrap_or(("", server));
        let host = rest.split_once('/').map_or(rest, |(host, _)| host);
        let why = match scheme {
            "" | "tcp" | "tcp+tls" if host.trim().is_empty() => {
                format!("there is no server between the commas of {servers:?}")
            }
            "tcp" if encrypted => format!("certificates are given, and {server:?} is not encrypted"),
            "tcp+tls" if !encrypted => format!("{server:?} is encrypted, and no certificates are given"),
            "" | "tcp" | "tcp+tls" if encrypted && !is_named(host) => {
                format!("no certificate is for the name of {server:?}")
            }
            "" | "tcp" | "tcp+tls" => continue,
            _ => format!("{server:?} begins with neither tcp:// nor tcp+tls://"),
        };
        return Err(RemoteError::Address { why: why.into() });
    }
    Ok(())
}

/// Whether a certificate may be for this host, which may have a port.
#[cfg(feature = "tls")]
fn is_named(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    rustls::pki_types::ServerName::try_from(name).is_ok()
}

#[cfg(not(feature = "tls"))]
fn is_named(_host: &str) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_all_encrypted_or_none() {
        for servers in ["zoo", "zoo1:2181,zoo2:2181/below", "tcp://zoo:1,zoo:2", "[::1]:2181"] {
            assert_eq!(check(servers, false), Ok(()), "{servers}");
        }
        for servers in [
            "",
            "zoo,",
            ",zoo",
            "zoo,,zoo",
            "http://zoo",
            "zoo1,tcp+tls://zoo2",
            "tcp://",
        ] {
            assert!(check(servers, false).is_err(), "{servers}");
        }
    }

    #[test]
    #[cfg(feature = "tls")]
    fn a_name_that_no_certificate_has_is_no_encrypted_server() {
        for servers in ["zoo:2281", "tcp+tls://zoo1:1,127.0.0.1", "[::1]:2281/below"] {
            assert_eq!(check(servers, true), Ok(()), "{servers}");
        }
        for servers in [
            "zoo..keeper:1",
            "z o o",
            "tcp://zoo:1",
            "zoo,tcp://zoo",
            "[zoo keeper]:1",
        ] {
            assert!(check(servers, true).is_err(), "{servers}");
        }
    }
}
