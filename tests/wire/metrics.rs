//! Runs the queries of examples/metrics.yaml as the role that docs/admin.md makes for them.

use std::collections::BTreeSet;
use std::path::Path;

use serde_yaml_ng::Value;
use tokio_postgres::types::Type;

use crate::documentation::Page;

/// What both exporters need of a metric: the name of its column, and how it is used.
fn metrics(collector: &Value) -> Vec<(String, String)> {
    let metrics = collector["metrics"].as_sequence().expect("metrics");
    let mut named = Vec::new();
    for metric in metrics {
        let (name, facts) = metric.as_mapping().and_then(|metric| metric.iter().next()).expect("a metric");
        assert!(facts["description"].as_str().is_some_and(|text| !text.is_empty()), "{name:?} has no description");
        named.push((name.as_str().expect("a name").to_owned(), facts["usage"].as_str().expect("a usage").to_owned()));
    }
    named
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_is_a_column_of_its_query() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/metrics.yaml");
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let collectors: Value = serde_yaml_ng::from_str(&text).unwrap_or_else(|error| panic!("metrics.yaml: {error}"));
    let page = Page::run("docs/admin.md").await;
    let exporter = page.connect("metrics").await;
    let mut full_names = BTreeSet::new();
    for (collector, facts) in collectors.as_mapping().expect("collectors") {
        let collector = collector.as_str().expect("a name");
        let query = facts["query"].as_str().unwrap_or_else(|| panic!("{collector} has no query"));
        let statement = exporter.prepare(query).await.unwrap_or_else(|error| panic!("{collector}: {error:?}"));
        let metrics = metrics(facts);
        let names: Vec<&str> = statement.columns().iter().map(|column| column.name()).collect();
        assert_eq!(names, metrics.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), "{collector}");
        for (column, (name, usage)) in statement.columns().iter().zip(&metrics) {
            match usage.as_str() {
                "LABEL" => assert!([Type::TEXT, Type::NAME].contains(column.type_()), "{name}: {}", column.type_()),
                "GAUGE" => assert!([Type::INT8, Type::NUMERIC].contains(column.type_()), "{name}: {}", column.type_()),
                other => panic!("{collector}: {name} is a {other}"),
            }
            let prefix = facts["name"].as_str().expect("a prefix");
            assert!(
                full_names.insert(format!("{prefix}_{name}")) || usage == "LABEL",
                "{prefix}_{name} is there twice"
            );
        }
        // A label's values tell the rows apart, and there is something to tell.
        let labels = metrics.iter().filter(|(_, usage)| usage == "LABEL").map(|(name, _)| name.as_str());
        let labels = labels.map(|label| format!("\"{label}\"")).collect::<Vec<_>>().join(", ");
        let count = format!("select count(*), count(distinct ({labels})) from ({query}) q");
        let counts = exporter.query_one(&count, &[]).await.unwrap_or_else(|error| panic!("{count}\n{error:?}"));
        let (rows, different): (i64, i64) = (counts.get(0), counts.get(1));
        assert!(rows > 0 && rows == different, "{collector}: {different} different labels in {rows} rows");
    }
    assert!(full_names.contains("agent_sessions_entries"), "{full_names:?}");
    agent_sessions_tests::assert_sqlstate!(
        exporter.query("select from agent_sessions.tenant_usage", &[]).await,
        "42501"
    );
}
