"""The jobs: functions of Arrow tables, whose answers merge in any order."""
