//! Versions of the schema: three numbers, compared as numbers.

use crate::error::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u32, u32, u32);

impl Version {
    /// `major.minor.patch`; SE001 for anything else.
    pub fn parse(argument: &'static str, text: &str) -> Result<Version, Error> {
        let malformed = || Error::invalid(argument, "must be a version such as 0.1.0");
        let mut numbers = text.split('.').map(|part| {
            if part.bytes().all(|byte| byte.is_ascii_digit()) {
                part.parse().map_err(|_| malformed())
            } else {
                Err(malformed())
            }
        });
        let mut next = || numbers.next().unwrap_or_else(|| Err(malformed()));
        let version = Version(next()?, next()?, next()?);
        match numbers.next() {
            None => Ok(version),
            Some(_) => Err(malformed()),
        }
    }
}

/// SE005 unless min <= schema <= max (a bound that is absent does not bind) and the library is of the schema's version.
pub fn require(schema: &str, library: &str, min: Option<&str>, max: Option<&str>) -> Result<(), Error> {
    let actual = Version::parse("schema", schema)?;
    let bound = |argument, text: Option<&str>| text.map(|text| Version::parse(argument, text)).transpose();
    let (low, high) = (bound("min", min)?, bound("max", max)?);
    if low.is_some_and(|low| actual < low) || high.is_some_and(|high| actual > high) || schema != library {
        return Err(Error::VersionMismatch {
            min: min.map(str::to_owned),
            max: max.map(str::to_owned),
            actual: schema.to_owned(),
            library: library.to_owned(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(min: Option<&str>, max: Option<&str>) -> Result<(), &'static str> {
        require("0.10.2", "0.10.2", min, max).map_err(|error| error.code())
    }

    #[test]
    fn versions_compare_as_numbers() {
        assert_eq!(code(Some("0.9.0"), None), Ok(()));
        assert_eq!(code(Some("0.10.2"), Some("0.10.2")), Ok(()));
        assert_eq!(code(Some("0.10.3"), None), Err("SE005"));
        assert_eq!(code(None, Some("0.9.9")), Err("SE005"));
        assert_eq!(require("0.1.0", "0.2.0", None, None).unwrap_err().code(), "SE005");
    }

    #[test]
    fn malformed_versions_are_arguments() {
        for text in ["", "1", "1.2", "1.2.3.4", "1.2.x", "+1.2.3", "1..3"] {
            assert_eq!(code(Some(text), None), Err("SE001"), "{text:?}");
        }
    }
}
