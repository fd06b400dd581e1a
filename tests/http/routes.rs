//! Every route of the broker, read out of the table that the router uses: a test over all of them misses no new one.

pub struct Route {
    pub method: String,
    pub pattern: String,
    pub access: String,
}

/// The lines of the table: `Method "path" Access handler,`.
pub fn every() -> Vec<Route> {
    let table = include_str!("../../src/http/routes.rs");
    let line = |line: &str| {
        let (method, rest) = line.trim().split_once('"')?;
        let (pattern, rest) = rest.split_once('"')?;
        let mut words = rest.split_whitespace();
        let (access, handler) = (words.next()?, words.next()?);
        let method = method.trim().to_ascii_uppercase();
        let route = ["GET", "POST", "PUT", "DELETE"].contains(&method.as_str()) && handler.ends_with(',');
        (route && pattern.starts_with('/')).then(|| Route { method, pattern: pattern.into(), access: access.into() })
    };
    let routes: Vec<Route> = table.lines().filter_map(line).collect();
    assert!(routes.len() >= 45, "the table is not read any more: {} routes", routes.len());
    routes
}

/// The levels of operations 2.7 for the routes this version has, and of the routes it adds.
#[test]
fn levels_are_those_of_the_contract() {
    let spec = include_str!("../../docs/spec/operations.md");
    let mut listed = 0;
    for route in every() {
        let level = match route.access.as_str() {
            "Public" => "public",
            "ReadOnly" => "read-only",
            "WriteOnly" => "write-only",
            "ReadWrite" => "read-write",
            "Admin" => "admin",
            other => panic!("{other}"),
        };
        let row = |line: &&str| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            cells.len() > 4
                && cells[1].split(", ").any(|method| method == route.method)
                && cells[2].split([' ', '·']).any(|path| path.trim_matches('`') == route.pattern)
        };
        let Some(line) = spec.lines().find(row) else {
            let added = matches!(route.pattern.as_str(), "/api/v1/dlq/redrive" | "/api/v1/dlq/redrive/:id" | "/");
            assert!(added, "{} {} is in no table of the contract", route.method, route.pattern);
            continue;
        };
        let want = line.split('|').nth(3).expect("a level").trim();
        assert!(want == level || (want == "write-only (D1)" && level == "read-write"), "{line}: {level}");
        listed += 1;
    }
    assert!(listed >= 40, "{listed}");
}
