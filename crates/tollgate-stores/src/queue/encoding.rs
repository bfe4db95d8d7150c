//! The encoding of keys and sessions in the names of nodes.

use std::fmt::Write as _;
use tollgate::remote::Session;

/// Escapes `key`, which ends with the kind of its limiter, as the name of a node. All but letters, digits and `-_:.` is escaped
/// in percents, so it is never a path.
pub(crate) fn escaped(key: &str) -> String {
    let mut escaped = String::with_capacity(key.len());
    for byte in key.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_:.".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

/// Parses a printed session.
pub(crate) fn parse_session(text: &str) -> Option<Session> {
    let (client, number) = text.split_once('.')?;
    Some(Session {
        client: u64::from_str_radix(client, 16).ok()?,
        number: number.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_key_name_is_one_node() {
        assert_eq!(escaped("reports:in-flight"), "reports:in-flight");
        assert_eq!(escaped("../a/ü"), "..%2Fa%2F%C3%BC");
    }
}
