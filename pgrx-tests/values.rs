//! Values in and out of datums.

#[pgrx::pg_schema]
mod tests {
    use pgrx::pg_test;

    use crate::postgres::value::{self, Element};

    #[pg_test]
    fn jsonb_takes_json() {
        let jsonb = value::jsonb(r#"{"b":1e2,"a":[true,null]}"#).expect("valid JSON");
        // SAFETY: a jsonb, as made above.
        assert_eq!(unsafe { value::jsonb_text(jsonb) }, r#"{"a": [true, null], "b": 100}"#);
    }

    #[pg_test]
    fn jsonb_says_why_it_does_not_take_a_text_and_the_backend_goes_on() {
        for refused in [r#"{"a":"\u0000"}"#, r#""\ud83d""#, "1e400000", "{", ""] {
            assert!(value::jsonb(refused).is_err(), "{refused}");
            assert!(value::jsonb("{}").is_ok());
        }
    }

    #[pg_test]
    fn arrays_come_back() {
        let texts = ["", "a", "\u{1F680}"].map(|text| Some(value::text_datum(text)));
        // SAFETY: the array is made of texts.
        let elements = unsafe { value::elements(Element::Text, value::array(Element::Text, &texts)) };
        // SAFETY: its elements are texts.
        let elements: Vec<&str> = elements.into_iter().flatten().map(|text| unsafe { value::text(text) }).collect();
        assert_eq!(elements, ["", "a", "\u{1F680}"]);
    }

    #[pg_test]
    fn an_array_with_a_null_has_no_elements() {
        let array = value::array(Element::Int8, &[Some(pgrx::pg_sys::Datum::from(1i64)), None]);
        // SAFETY: the array is made of bigints.
        assert!(unsafe { value::elements(Element::Int8, array) }.is_none());
    }

    #[pg_test]
    fn a_size_counts_bytes_without_the_header() {
        assert_eq!(value::size(None), 0);
        assert_eq!(value::size(Some(value::text_datum("\u{e9}"))), 2);
    }
}
