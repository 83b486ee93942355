/* SQLite with a database in memory: parser, planner, virtual machine, sorting, functions of ours. */
#include "check.h"

#include "sqlite3.h"

/* SQLite queries its file system for random numbers and the time, even if no file is opened. */
static int randomness(sqlite3_vfs *vfs, int count, char *out) {
    memset(out, 7, (size_t)count);
    return count;
}
static int current_time(sqlite3_vfs *vfs, sqlite3_int64 *result) {
    *result = 1700000000000 + 210866760000000;
    return SQLITE_OK;
}
static int open_nothing(sqlite3_vfs *vfs, const char *name, sqlite3_file *file, int how, int *got) {
    return SQLITE_CANTOPEN;
}
static int full_name(sqlite3_vfs *vfs, const char *name, int size, char *out) {
    return snprintf(out, (size_t)size, "%s", name) < size ? SQLITE_OK : SQLITE_CANTOPEN;
}
static sqlite3_vfs files = {
    .iVersion = 2,
    .szOsFile = sizeof(sqlite3_file),
    .mxPathname = 100,
    .zName = "none",
    .xOpen = open_nothing,
    .xFullPathname = full_name,
    .xRandomness = randomness,
    .xCurrentTimeInt64 = current_time,
};
int sqlite3_os_init(void) { return sqlite3_vfs_register(&files, 1); }
int sqlite3_os_end(void) { return SQLITE_OK; }
/* The extensions that the package adds are not built. */
int sqlite3_sqlean_init(void) { return SQLITE_OK; }

static const char *const statements[] = {
    "create table t(id integer primary key, name text not null, size real, kind int)",
    "create index by_name on t(name collate nocase, kind)",
    "create table log(what text, at int)",
    "create trigger noted after update on t begin insert into log values (new.name, new.id); end",
    "with recursive n(i) as (select 1 union all select i + 1 from n where i < 120) "
    "insert into t select i, printf('n%04d', i * 7919 % 1009), i * 1.5, i % 7 from n",
    "create table u(kind int unique, label text, check (kind >= 0))",
    "insert into u values (0,'zero'),(1,'one'),(2,'two'),(3,'three')",
    "begin",
    "update t set size = size + 1 where kind in (select kind from u where label like 't%')",
    "savepoint s",
    "delete from t where id > 100",
    "rollback to s",
    "commit",
    "create view v as select t.name, u.label from t join u using (kind) where size > 20",
    "analyze",
    "insert into u values (9,'nine') on conflict(kind) do update set label = excluded.label",
    "alter table u add column extra default 'x'",
    "vacuum",
};

static const struct {
    const char *query, *answer;
} queries[] = {
    {"select count(*), sum(id), round(avg(size), 2) from t", "120|7260|91.03|"},
    {"select kind, count(*) c, group_concat(id % 3, '') from t where id < 20 group by kind "
     "having c > 2 order by c desc, kind limit 2",
     "1|3|120|2|3|201|"},
    {"select count(*) from v where label = 'two' or name > 'n05'", "39|"},
    {"select name from t order by twice(size) desc, name limit 3", "n0811|n0964|n0108|"},
    {"select joined(label) from u", "zero-one-two-three-nine|"},
    {"select a.id, b.id from t a left join t b on a.id = b.kind * 17 where a.id in (17, 18) "
     "order by 1, 2 limit 3",
     "17|1|17|8|17|15|"},
    {"select id, rank() over (partition by kind order by size desc), sum(id) over (order by id "
     "rows between 2 preceding and current row) from t where id < 5",
     "1|1|1|2|1|3|3|1|6|4|1|9|"},
    {"select upper(substr(name, 2)), typeof(size), abs(-id), coalesce(null, kind), "
     "case when id = 1 then 'a' else 'b' end, hex(cast(id as text)), id between 0 and 2, "
     "name glob 'n*', replace(name, 'n', 'm') from t where id = 1",
     "0856|real|1|1|a|31|1|1|m0856|"},
    {"select json_extract('{\"a\":[1,{\"b\":2.5}]}', '$.a[1].b'), "
     "json_group_array(id) from t where id < 4",
     "2.5|[1,2,3]|"},
    {"select strftime('%Y-%m-%d', 1700000000, 'unixepoch'), date('2020-02-28', '+1 day')",
     "2023-11-14|2020-02-29|"},
    {"select count(*) from (select name from t union select label from u except select 'one')",
     "124|"},
    {"select (select max(size) from t x where x.kind = t.kind) from t where exists (select 1 from "
     "log where at = t.id) and id < 10 order by id limit 2",
     "172.0|173.5|"},
    {"select 1e100, 0.1 + 0.2, 9223372036854775807 + 1, -7 / 2, -7 % 3, 'a' || 1 || x'62'",
     "1.0e+100|0.3|9.22337203685478e+18|-3|-1|a1b|"},
    {"pragma integrity_check", "ok|"},
    {"explain query plan select * from t where name = 'x'", NULL},
};

static char collected[4096];

static int collect(void *unused, int count, char **values, char **names) {
    for (int i = 0; i < count; i++) {
        size_t length = strlen(collected);
        snprintf(collected + length, sizeof collected - length, "%s|", values[i] ? values[i] : "");
    }
    return 0;
}

static void twice(sqlite3_context *context, int count, sqlite3_value **values) {
    sqlite3_result_double(context, 2 * sqlite3_value_double(values[0]));
}

static void join_step(sqlite3_context *context, int count, sqlite3_value **values) {
    char *text = sqlite3_aggregate_context(context, 200);
    if (*text) {
        strcat(text, "-");
    }
    strcat(text, (const char *)sqlite3_value_text(values[0]));
}

static void join_final(sqlite3_context *context) {
    sqlite3_result_text(context, sqlite3_aggregate_context(context, 0), -1, SQLITE_TRANSIENT);
}

int main(void) {
    sqlite3 *database;
    expect(sqlite3_open(":memory:", &database) == SQLITE_OK);
    expect(!sqlite3_create_function(database, "twice", 1, SQLITE_UTF8, 0, twice, 0, 0));
    expect(!sqlite3_create_function(database, "joined", 1, SQLITE_UTF8, 0, 0, join_step, join_final));
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (sqlite3_exec(database, statements[i], NULL, NULL, NULL) != SQLITE_OK) {
            fail(sqlite3_errmsg(database), (int)i);
        }
    }
    for (size_t i = 0; i < sizeof queries / sizeof *queries; i++) {
        collected[0] = 0;
        if (sqlite3_exec(database, queries[i].query, collect, NULL, NULL) != SQLITE_OK) {
            fail(sqlite3_errmsg(database), (int)i);
        }
        if (queries[i].answer && strcmp(collected, queries[i].answer)) {
            fail(collected, (int)i);
        }
    }
    expect(sqlite3_exec(database, "insert into u values (-1,'','')", 0, 0, 0) == SQLITE_CONSTRAINT);
    expect(sqlite3_exec(database, "selec 1", 0, 0, 0) == SQLITE_ERROR);
    expect(sqlite3_close(database) == SQLITE_OK);
    leave();
}
