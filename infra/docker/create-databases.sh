#!/bin/sh
# Run once by PostgreSQL's image when its volume is empty.
set -eu
for name in prefect mlflow auth; do
    psql -v ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres -c "CREATE DATABASE rewardsmith_$name"
done
