//! A quota as a value of serde: a text, or a table of its numbers.

use super::quota::Quota;
use serde::de::{Error, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// The text: see [`Quota`].
impl Serialize for Quota {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// From a text such as `"6000/min burst 200"`, or from a table of `count` and `per`, and of `burst` and `by_interval` where they differ
/// from what the text leaves out.
///
/// ```
/// # use tollgate::Quota;
/// # use serde::Deserialize;
/// # use serde::de::value::{Error, StrDeserializer, MapDeserializer};
/// let text = Quota::deserialize(StrDeserializer::<Error>::new("60/min by interval"))?;
/// assert_eq!(text, Quota::per_minute(60).by_interval());
/// let table = MapDeserializer::<_, Error>::new([("per", "min")].into_iter());
/// assert!(Quota::deserialize(table).unwrap_err().to_string().contains("missing field `count`"));
/// # Ok::<(), Error>(())
/// ```
impl<'de> Deserialize<'de> for Quota {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(QuotaVisitor)
    }
}

/// The table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Numbers {
    count: u64,
    per: String,
    burst: Option<u64>,
    #[serde(default)]
    by_interval: bool,
}

impl Numbers {
    fn quota<E: Error>(&self) -> Result<Quota, E> {
        let quota: Quota = format!("{}/{}", self.count, self.per).parse().map_err(E::custom)?;
        let quota = self
            .burst
            .map_or(Ok(quota), |burst| quota.with_burst(burst))
            .map_err(E::custom)?;
        Ok(match self.by_interval {
            true => quota.by_interval(),
            false => quota,
        })
    }
}

struct QuotaVisitor;

impl<'de> Visitor<'de> for QuotaVisitor {
    type Value = Quota;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quota such as \"100/s burst 20\", in quotes,")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Quota, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Quota, A::Error> {
        Numbers::deserialize(MapAccessDeserializer::new(map))?.quota()
    }
}

#[cfg(test)]
mod tests {
    use crate::rate::{Inherit, Quota};
    use serde::Deserialize;
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error, StrDeserializer};

    #[test]
    fn a_quota_reads_as_it_is_written() {
        for text in [
            "100/s",
            "5000/min burst 200",
            "3/20s burst 7 by interval",
            "zero burst 5",
            "unlimited",
        ] {
            let read: StrDeserializer<'_, Error> = text.into_deserializer();
            assert_eq!(Quota::deserialize(read).unwrap().to_string(), text);
        }
        let wrong: StrDeserializer<'_, Error> = "10/parsec".into_deserializer();
        let error = Quota::deserialize(wrong).unwrap_err().to_string();
        assert_eq!(error, "10/parsec".parse::<Quota>().unwrap_err().to_string());
    }

    #[test]
    fn a_rule_of_change_has_its_name() {
        let read = |name: &'static str| {
            let name: StrDeserializer<'_, Error> = name.into_deserializer();
            Inherit::deserialize(name)
        };
        assert_eq!(read("as-is"), Ok(Inherit::AsIs));
        assert_eq!(read("proportional"), Ok(Inherit::Proportional));
        assert!(read("copy").is_err());
    }
}
